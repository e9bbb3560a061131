"""The catalogue in a browser and over JSON: a router for any FastAPI application, and one of its own."""
