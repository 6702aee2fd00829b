"""Models as a cache sees them: a Hugging Face `config.json`, or a file of this library's own configuration, as layers and bytes."""
