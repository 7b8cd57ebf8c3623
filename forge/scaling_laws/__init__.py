"""Laws of loss over parameters, tokens and compute, fitted with numpy; torch-free."""
