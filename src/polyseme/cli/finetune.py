"""`polyseme finetune`."""
