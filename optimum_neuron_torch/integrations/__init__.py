"""Bridges from the plugin to Transformers, Diffusers, the Trainer and Accelerate."""
