"""From a route to a plan: who is to be asked, or what is known without asking."""

from __future__ import annotations

from llmtop.errors import Refusal, Refused
from llmtop.frontdoor import routes
from llmtop.frontdoor.answer import Answer
from llmtop.frontdoor.body import IN_MEMORY
from llmtop.frontdoor.gate import Upstream
from llmtop.frontdoor.head import RequestHead, bad
from llmtop.frontdoor.plan import Plan, Shared
from llmtop.frontdoor.routes import Kind, Route

PREFLIGHT = (
    (b"access-control-allow-methods", b"GET, HEAD, POST, DELETE"),
    (b"access-control-allow-headers", b"authorization, content-type, x-api-key"),
    (b"access-control-max-age", b"600"),
)


def plan(shared: Shared, head: RequestHead, route: Route, answer: Answer) -> Plan | None:
    """What to do with a request.

    Returns:
        The plan; None when the answer was given from what is known.

    Raises:
        Refused: It cannot be answered.
    """
    if route.kind is Kind.INFERENCE:
        query = routes.query_of(head)
        return Plan(
            head.target,
            by_body=True,
            query_model=query.get("model", ""),
            autoload=routes.autoload_of(query),
            body_max=shared.settings.max_body,
            generates=route.generates,
        )
    if route.kind is Kind.UPSTREAM:
        return _upstream(shared, head)
    if route.kind is Kind.OBSERVE:
        return _observe(shared, head, route, answer)
    return Plan(head.target, upstream=shared.gate.control(), body_max=IN_MEMORY)


def _running(shared: Shared, model: str) -> Upstream:
    place = shared.gate.observe(model)
    if isinstance(place, str):
        raise Refused(Refusal("model_not_loaded", f"{model} is {place}; this request does not load it", status=409))
    return place


def _upstream(shared: Shared, head: RequestHead) -> Plan:
    model, target = routes.split_upstream(head, shared.gate)
    if head.method in routes.READS:
        place = _running(shared, model)
        if place.asleep:
            raise Refused(
                Refusal("model_not_loaded", f"{model} is sleeping; this request does not wake it", status=409)
            )
        return Plan(target, model, upstream=place, body_max=IN_MEMORY)
    # A small body that announces its length is waited for; of another one, what has come is looked at for its "stream"
    # when it is time to let a waiting client know.
    early = head.length is None or head.length > IN_MEMORY
    autoload = routes.autoload_of(routes.query_of(head))
    return Plan(
        target, model, early=early, stream=_wants_events(head), autoload=autoload, body_max=shared.settings.max_body
    )


def _wants_events(head: RequestHead) -> bool:
    """It takes a stream of events and nothing else, as a browser's EventSource does."""
    accept = (head.header(b"accept") or b"").lower().split(b",")
    return {kind.partition(b";")[0].strip() for kind in accept} == {b"text/event-stream"}


def _observe(shared: Shared, head: RequestHead, route: Route, answer: Answer) -> Plan | None:
    name = routes.query_of(head).get("model", "")
    if not name:
        raise bad("this path needs ?model=")
    model = shared.gate.resolve(name)
    if model is None:
        raise Refused(Refusal("model_not_found", "no model of that name; see /v1/models"))
    place = _running(shared, model)
    if route.neutral or (shared.gate.busy(model) and not place.asleep):
        return Plan(head.target, model, upstream=place, body_max=IN_MEMORY, remember=not route.neutral)
    known = shared.last_known.get(model, head.target, place.key)
    if known is None:
        why = "sleeping and asking it would wake it" if place.asleep else "idle and asking it would keep it from sleep"
        raise Refused(Refusal("model_not_loaded", f"{model} is {why}; nothing is known yet", status=409))
    age = max(0, int(shared.loop.time() - known.at))
    answer.whole(200, ((b"content-type", known.content_type), (b"age", b"%d" % age)), known.body)
    return None
