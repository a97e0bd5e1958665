"""The conditioning cache: what the text encoder made of a presentation, kept by what it follows from."""
