// Where a token is needed and none was given.

import { useState } from "preact/hooks";
import type { Problem } from "../api";
import { Command, ProblemNotice } from "../parts/notice";
import { logIn } from "../store";

export function LogIn() {
  return (
    <section class="panel narrow">
      <h1>A token is needed</h1>
      <p>This service answers only with a token: paste one of the file that <Command>gpudiag serve --token-file</Command> was started with.</p>
      <TokenForm />
    </section>
  );
}

export function TokenForm() {
  const [token, setToken] = useState("");
  const [problem, setProblem] = useState<Problem | null>(null);
  const submit = async (event: Event): Promise<void> => {
    event.preventDefault();
    setProblem(await logIn(token.trim()));
    setToken("");
  };
  return (
    <form class="token" onSubmit={(event) => void submit(event)}>
      <label>Token <input type="password" autocomplete="off" required value={token} onInput={(event) => setToken(event.currentTarget.value)} /></label>
      <button type="submit" class="primary">Use it</button>
      {problem && <ProblemNotice problem={problem} />}
    </form>
  );
}
