"""Running jobs, judged from looks at their ranks: what each rank does, who waits for whom, who is to blame."""
