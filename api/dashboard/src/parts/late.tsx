// A view of a part of the page that is loaded when it is opened first, so that the others stay small.

import type { ComponentType } from "preact";
import { useEffect, useState } from "preact/hooks";
import { Loading, Notice } from "./notice";

export function late<Module, Props extends object>(load: () => Promise<Module>, pick: (module: Module) => ComponentType<Props>): ComponentType<Props> {
  let loaded: ComponentType<Props> | null = null;
  return function Late(props: Props) {
    const [state, setState] = useState<"waits" | "there" | "failed">(loaded ? "there" : "waits");
    useEffect(() => {
      if (loaded) return;
      load().then(
        (module) => {
          loaded = pick(module);
          setState("there");
        },
        () => setState("failed"),
      );
    }, []);
    if (loaded) {
      const View = loaded;
      return <View {...props} />;
    }
    if (state === "failed") {
      return <Notice tone="fail" title="This view could not be loaded." announce="This view could not be loaded.">gpudiag serve may have been updated or stopped: reload the page.</Notice>;
    }
    return <Loading what="the view" />;
  };
}
