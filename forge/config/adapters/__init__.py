"""Sections of adapters: LoRA, QLoRA and IA3."""
