FROM python:3.11-slim
RUN pip install --no-cache-dir uv
WORKDIR /app
COPY pyproject.toml uv.lock README.md LICENSE ./
RUN uv sync --frozen --no-dev --extra server --extra kv-events --no-install-project
COPY . .
RUN uv sync --frozen --no-dev --extra server --extra kv-events && useradd --system console
ENV PATH=/app/.venv/bin:$PATH PYTHONUNBUFFERED=1
USER console
EXPOSE 8000
CMD ["uvicorn", "console.asgi:application", "--host=0.0.0.0", "--port=8000", "--lifespan=on"]
