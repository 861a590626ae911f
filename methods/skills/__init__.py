"""Skills: where they come from (analyzer), which step gets which (routing), and how they enter a prompt (injection)."""
