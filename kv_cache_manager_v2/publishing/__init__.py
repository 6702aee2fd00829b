"""KV events over ZeroMQ, in the wire form that vLLM publishes and Dynamo, llm-d and AIBrix consume. Needs the extra `events`."""
