"""Running jobs, judged from looks at their ranks: who does what, who waits for whom, who is to blame."""
