"""HTTP in OpenAI's shapes: translates requests and answers, holds no inference logic."""
