"""How much memory there is, who holds it, how much a model will take, and whether it came back."""
