FROM python:3.14-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY packages packages
COPY server server
COPY toolpacks toolpacks
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels . \
    && pip wheel --no-cache-dir --no-deps --wheel-dir /wheels/more ./packages/* \
    && python -m venv /opt/toolpack-server \
    && /opt/toolpack-server/bin/pip install --no-cache-dir "$(echo /wheels/*.whl)[otel,postgres,redis,seeded]" /wheels/more/*.whl

FROM python:3.14-slim
# A new volume at /data gets the owner of this folder in the image, so the user `toolpack` can write to the volume.
RUN useradd --uid 10001 --no-create-home toolpack \
    && install --directory --owner toolpack /data /packs
COPY --from=build /opt/toolpack-server /opt/toolpack-server
ENV PATH=/opt/toolpack-server/bin:$PATH PYTHONUNBUFFERED=1
USER 10001
WORKDIR /data
VOLUME /data
EXPOSE 8000
# Check only that the process responds. If the store is unreachable, a restart wouldn't help; /readyz reports this case.
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s \
    CMD ["python", "-c", "import os, urllib.request as r; r.urlopen('http://127.0.0.1:' + os.environ.get('TOOLPACK_PORT', '8000') + '/healthz', timeout=4)"]
ENTRYPOINT ["toolpack-server"]
CMD ["serve", "--host", "0.0.0.0", "--data-dir", "/data", "--pack-dir", "/packs"]
