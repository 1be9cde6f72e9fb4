"""Built-in serving engine: policy in plain Python, mechanism in torch."""
