"""Request and answer shapes. Validation errors become OpenAI error objects with the field in ``param``."""
