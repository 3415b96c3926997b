# The MLflow server with PostgreSQL and S3 clients, and nothing of torch or Ray. Build from the repository's root:
#   docker build -f deploy/images/mlflow.Dockerfile -t calibration-sweeper-mlflow:0.1.0 .
FROM python:3.11.11-slim-bookworm
LABEL org.opencontainers.image.title="calibration-sweeper-mlflow" org.opencontainers.image.licenses="MIT"
RUN useradd --uid 10002 --create-home --shell /usr/sbin/nologin mlflow
COPY constraints.txt /tmp/constraints.txt
RUN python -m pip install --no-cache-dir -c /tmp/constraints.txt mlflow "psycopg[binary]" boto3
COPY deploy/images/mlflow_server.py /opt/mlflow_server.py
USER 10002
WORKDIR /home/mlflow
ENV PYTHONUNBUFFERED=1
EXPOSE 5000
HEALTHCHECK --interval=15s --timeout=5s --start-period=60s CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:5000/health', timeout=4)"]
CMD ["python", "/opt/mlflow_server.py"]
