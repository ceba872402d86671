"""The ten lines of the README: a tool, an agent with the embedded model, a question."""

from __future__ import annotations

from toolcrib import ALL, Agent, run_sync, tool


@tool(visible=ALL, read_only=True, examples=[("how long is the word tea", {"word": "tea"})])
def count_letters(word: str) -> dict[str, int]:
    """Count the letters of a word."""
    return {"letters": len(word)}


result = run_sync(Agent("local", [count_letters]).run("How many letters has the word banana?"))
print(result.text)
for record in result.records:
    print(record.name, record.arguments, record.result)
