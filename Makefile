# `make app` and `make test` do all their own set-up in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: app test check train bench clean help

help:
	@echo "make app    set up .venv and serve the page at http://127.0.0.1:7860"
	@echo "make test   set up .venv and run the tests"
	@echo "make check  lint and type checks"
	@echo "make train  train the three models into runs/ (the pictures are drawn)"
	@echo "make bench  measure training, decoding, start-up and the page; some minutes on an idle machine"
	@echo "make clean  remove .venv and caches"

app: $(VENV)/app-ready
	$(BIN)/python app.py

test: $(VENV)/dev-ready
	$(BIN)/python -m pytest -m "not slow and not gpu"

check: $(VENV)/dev-ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

train: $(VENV)/app-ready
	$(BIN)/python train.py all --flowers drawn

bench: $(VENV)/bench-ready
	$(BIN)/python benchmarks/decoding.py
	$(BIN)/python benchmarks/context_cost.py
	$(BIN)/python benchmarks/tokenizing.py
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/app_latency.py
	$(BIN)/python benchmarks/training.py

$(VENV)/app-ready: requirements.txt
	$(PYTHON) -c 'import sys; sys.exit("tinylm needs Python 3.10 or newer; name one with: make app PYTHON=python3.11" if sys.version_info < (3, 10) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	@echo "Installing PyTorch, Gradio and the rest into $(VENV); this takes some minutes the first time."
	$(BIN)/python -m pip install --quiet -r requirements.txt
	@touch $@

$(VENV)/dev-ready: $(VENV)/app-ready requirements-dev.txt
	$(BIN)/python -m pip install --quiet -r requirements-dev.txt
	@touch $@

$(VENV)/bench-ready: $(VENV)/app-ready requirements-bench.txt
	$(BIN)/python -m pip install --quiet -r requirements-bench.txt
	@touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache
