"""Public learning curves, and other packages' schedulers in this project's loop: what `bench_public` plays."""
