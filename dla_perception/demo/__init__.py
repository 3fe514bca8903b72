"""The built-in scene, the small network trained on it and the demo: nothing to download."""
