# `make app` and `make test` do all their own set-up in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --no-warn-conflicts

.PHONY: app test check train soak audit bench clean help

help:
	@echo "make app    set up .venv and serve the page at http://127.0.0.1:7860"
	@echo "make test   set up .venv and run the tests"
	@echo "make check  lint and type checks"
	@echo "make train  train the three models into runs/ (the pictures are drawn)"
	@echo "make soak   load and abuse the served page, up to a quarter of an hour; figures go to benchmarks/results"
	@echo "make audit  ask for known security flaws of what is installed; needs a network"
	@echo "make bench  measure training, decoding, start-up and the page; some minutes on an idle machine"
	@echo "make clean  remove .venv and caches"

app: $(VENV)/app-ready
	$(BIN)/python app.py

test: $(VENV)/dev-ready
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile -m "not slow and not gpu and not soak"

check: $(VENV)/dev-ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

train: $(VENV)/app-ready
	$(BIN)/python train.py all --flowers drawn

soak: $(VENV)/dev-ready
	$(BIN)/python tests/soak

audit: $(VENV)/app-ready
	$(BIN)/python tests/audit.py

bench: $(VENV)/bench-ready
	$(BIN)/python benchmarks/decoding.py
	$(BIN)/python benchmarks/context_cost.py
	$(BIN)/python benchmarks/tokenizing.py
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/app_latency.py
	$(BIN)/python benchmarks/training.py

# gradio 6.31 asks for pillow<13, but 12 lacks security fixes of 13 (a heap overflow in reading JPEGs is one), and the
# two work together: the tests run so. So Pillow comes last, without its say; pip's warnings are off, and it is
# the one thing that `pip check` complains of (tests/test_dependencies.py). Until the gradio in requirements.txt allows
# Pillow 13: then ask for it there and drop this line. Python 3.10 keeps 12, since 13 needs 3.11.
$(VENV)/app-ready: requirements.txt
	$(PYTHON) -c 'import sys; sys.exit("tinylm needs Python 3.10 or newer; name one with: make app PYTHON=python3.11" if sys.version_info < (3, 10) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --upgrade pip
	@echo "Installing PyTorch, Gradio and the rest into $(VENV); this takes some minutes the first time."
	$(INSTALL) -r requirements.txt
	$(INSTALL) --no-deps "pillow>=13; python_version >= '3.11'"
	@touch $@

$(VENV)/dev-ready: $(VENV)/app-ready requirements-dev.txt
	$(INSTALL) -r requirements-dev.txt
	@touch $@

$(VENV)/bench-ready: $(VENV)/app-ready requirements-bench.txt
	$(INSTALL) -r requirements-bench.txt
	@touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache
