"""The only room that couples all others: a plan is made, requests are put together, answers become updates."""
