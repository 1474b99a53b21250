.PHONY: install test endurance exhaustive lint types docs bench ci

install:
	pip install -e '.[test,bench]'

test:
	pytest

endurance:
	pytest -m endurance

exhaustive:
	pytest -m exhaustive

lint:
	ruff check .
	ruff format --check .

types:
	pyright

docs:
	python tools/run_code_blocks.py README.md docs/*.md docs/*.ipynb

bench:
	python benchmarks/logistic_step.py

ci:
	bash .ci/run
