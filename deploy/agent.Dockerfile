# The agent alone: the base package, without Django and without a database driver.
#   docker build -f deploy/agent.Dockerfile -t prfaas-agent .
#   docker run --rm -v $PWD/agent:/etc/prfaas:ro prfaas-agent --once --print   # to try it
FROM python:3.11-slim AS build
RUN pip install --no-cache-dir uv
WORKDIR /src
COPY pyproject.toml uv.lock README.md LICENSE ./
ENV UV_PROJECT_ENVIRONMENT=/opt/prfaas-agent
RUN uv sync --frozen --no-dev --no-install-project
COPY console console
COPY routing routing
COPY telemetry telemetry
COPY templates templates
RUN uv sync --frozen --no-dev --no-editable

FROM python:3.11-slim
# `ss` is what connections are read with where the kernel's own interface is closed to us.
RUN apt-get update && apt-get install -y --no-install-recommends iproute2 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 agent \
    && install -d -o agent -g agent /var/lib/prfaas-agent
COPY --from=build /opt/prfaas-agent /opt/prfaas-agent
ENV PATH=/opt/prfaas-agent/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001
VOLUME /var/lib/prfaas-agent
ENTRYPOINT ["python", "-m", "telemetry.agent", "--config", "/etc/prfaas/agent.toml"]
