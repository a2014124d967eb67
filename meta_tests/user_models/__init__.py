"""Models as users write them, for `--model meta_tests.user_models.resnet:factory` and the like."""
