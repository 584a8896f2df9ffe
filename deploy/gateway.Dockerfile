# The gateway: `docker build -f deploy/gateway.Dockerfile -t weighbridge .`
FROM python:3.13-slim AS build
WORKDIR /src
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN python -m venv /opt/weighbridge
COPY deploy/locks/gateway.txt deploy/locks/gateway.txt
RUN /opt/weighbridge/bin/pip install --require-hashes -r deploy/locks/gateway.txt
COPY pyproject.toml README.md LICENSE ./
COPY gateway gateway
COPY workers workers
COPY migrations migrations
RUN /opt/weighbridge/bin/pip install --no-deps --no-build-isolation . \
    && /opt/weighbridge/bin/python -m compileall -q /opt/weighbridge

FROM python:3.13-slim
COPY --from=build /opt/weighbridge /opt/weighbridge
# Inside a container the network decides who reaches which listener; compose.yaml publishes only the first.
ENV PATH=/opt/weighbridge/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    WEIGHBRIDGE_PUBLIC=0.0.0.0:8080 \
    WEIGHBRIDGE_ADMIN=0.0.0.0:8081 \
    WEIGHBRIDGE_INTERNAL=0.0.0.0:8082
EXPOSE 8080 8081 8082
USER 10001:10001
# Alive, not ready: a gateway without replicas is healthy and says so at /readyz.
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8082/livez', timeout=2)"]
ENTRYPOINT ["weighbridge"]
CMD ["serve"]
