"""Task train, runner torch: whole optimiser steps of a Llama-family decoder."""
