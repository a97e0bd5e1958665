"""LoRA: files of any dialect as side branches of the transformer's linears, switched and weighted per job."""
