"""autotune finds, proves and hands over the configuration that makes an LLM train or serve best."""
