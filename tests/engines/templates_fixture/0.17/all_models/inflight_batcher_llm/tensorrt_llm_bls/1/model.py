"""The code of tensorrt_llm_bls in a stand-in for an image's templates."""
