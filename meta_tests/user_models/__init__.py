"""Models as users write them, for `--model meta_tests.user_models.convnet:factory` and the like."""
