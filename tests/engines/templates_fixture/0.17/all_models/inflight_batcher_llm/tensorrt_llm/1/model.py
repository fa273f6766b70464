"""The code of tensorrt_llm in a stand-in for an image's templates."""
