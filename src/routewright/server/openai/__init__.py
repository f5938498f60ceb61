"""The door for clients of OpenAI: chat completions and models, as its SDKs ask for and read them (contract 14)."""
