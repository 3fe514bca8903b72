# The usual ways in. Everything runs in the environment that tools/env makes, once, in .venv.

.PHONY: help env demo test lint bench clean

help:
	@echo "make env    make the environment (the others do it too, if need be)"
	@echo "make demo   watch the whole system work; DEMO_ARGS=... for options"
	@echo "make test   lint and tests; TEST_ARGS=... for pytest's options"
	@echo "make lint   style and types only"
	@echo "make bench  measure"
	@echo "make clean  remove everything that was made, the environment too"

env:
	@tools/env

demo: env
	@tools/run python -m dla_perception demo $(DEMO_ARGS)

lint: env
	@tools/run ruff check --quiet
	@tools/run mypy --no-error-summary

# A message with a field of the wrong type is an error in tests, not a surprise for the receiver.
test: lint
	@ROS_PYTHON_CHECK_FIELDS=1 tools/run python -m pytest $(TEST_ARGS)

bench: env
	@set -e; for program in benchmarks/*.py; do \
	    echo "== $$program"; \
	    tools/run python "$$program"; \
	done

clean:
	rm -rf .venv .venv.log .venv.unfinished build install log demo_output
	rm -rf .hypothesis .mypy_cache .pytest_cache .ruff_cache *.egg-info
	find . -path ./.git -prune -o -type d -name __pycache__ -prune -exec rm -rf {} +
