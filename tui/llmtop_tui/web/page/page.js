"use strict";

const SIZES = [8, 14, 40]; // least, usual and largest font size [px]; ?fontsize= asks for one

const terminal = document.getElementById("terminal");
const [least, usual, largest] = SIZES;
const asked = Number(new URLSearchParams(location.search).get("fontsize")) || usual;
terminal.dataset.fontSize = Math.min(Math.max(asked, least), largest);
terminal.dataset.sessionWebsocketUrl = location.origin.replace(/^http/, "ws") + "/ws";
document.getElementById("again").addEventListener("click", () => location.reload());

// The terminal measures its cells once, when it opens: its fonts must be there by then.
addEventListener("load", async () => {
  const fonts = ["", "bold ", "italic "].map((style) => document.fonts.load(`${style}${usual}px "Roboto Mono"`));
  await Promise.allSettled(fonts);
  const script = document.createElement("script");
  script.src = "/static/js/textual.js";
  script.addEventListener("load", () => {
    window.onload(); // it waits for an event that has been
    terminal.querySelector("textarea").focus();
  });
  document.head.append(script);
});
