"""Shipped checks: toy models and tokenizers, their reference, and checks of policies and executors."""
