"""Encoders and decoders shared by the keeper client, the server and the SDK: frames, NDJSON, tar, text."""
