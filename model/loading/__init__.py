"""From files in ComfyUI's folder layout to modules: find, read, check, assign. Nothing is silent."""
