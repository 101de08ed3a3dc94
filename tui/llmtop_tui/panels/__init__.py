"""The panels of the main screen: Textual widgets that draw lines and repaint only what changed."""
