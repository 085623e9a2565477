"""The tools that a model can call, one module per noun."""
