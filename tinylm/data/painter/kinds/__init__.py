"""The kinds of flowers, one file a build, each with its flowers, their greenery and their colours."""
