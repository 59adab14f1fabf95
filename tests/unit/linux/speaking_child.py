"""`python -m tests.unit.linux.speaking_child PARENT_PID COUNT`: writes that many lines, in pieces, and ends
with status 4.
"""

import sys

if __name__ == "__main__":
    for number in range(int(sys.argv[2])):
        for piece in ('{"num', f'ber": {number}', "}\n"):
            sys.stdout.write(piece)
            sys.stdout.flush()
    sys.exit(4)
