{{/* Written by `make pages` from docs/ci/kubernetes/job.yaml: change it there. */}}
{{/*
An init container that keeps a pod off GPUs that are not fit. In a chart that has this one as a dependency:

  initContainers:
    {{- include "gpudiag.preflight" (dict "image" "gpudiag:slim" "gpus" 8) | nindent 4 }}

and gives it the `resources` of the container whose GPUs are to be judged, by `"resources" .Values.resources`.
Others: pullPolicy, level (instant), seconds (60), unsure (stop; or run), onFail (hold; or report).
*/}}
{{- define "gpudiag.preflight" -}}
- name: gpudiag
  image: {{ .image | quote }}
  imagePullPolicy: {{ .pullPolicy | default "IfNotPresent" }}
  command:
    - /bin/sh
    - -c
    - |
      timeout -k 10 "${GPUDIAG_SECONDS:-60}" gpudiag preflight --level "${GPUDIAG_LEVEL:-instant}" --reason \
        ${GPUS:+--expect-gpus "$GPUS"} > /dev/termination-log
      status=$?
      [ "$GPUDIAG_UNSURE" != run ] || [ $status -eq 1 ] || exit 0
      exit {{ if eq (.onFail | default "hold") "report" }}0{{ else }}$status{{ end }}
  env:
    - name: GPUS # as many as the containers ask for: stated once, here; empty where they are instances of MIG
      value: {{ .gpus | default "" | quote }}
    - name: GPUDIAG_LEVEL
      value: {{ .level | default "instant" }} # only reads, 2 s; quick starts work on the GPUs: a minute, with GPUDIAG_SECONDS 240
    - name: GPUDIAG_SECONDS
      value: {{ .seconds | default 60 | quote }}
    - name: GPUDIAG_UNSURE
      value: {{ .unsure | default "stop" }} # or run
  terminationMessagePolicy: FallbackToLogsOnError
{{- with .resources }}
  resources:
    {{- toYaml . | nindent 4 }}
{{- end }}
{{- end -}}

{{/* That of the DaemonSet: it asks for no GPU, sees all of the node's, and adds its report to the node's
history. */}}
{{- define "gpudiag.preflight.of.node" -}}
{{- $asked := dict "image" (include "gpudiag.image" .) "pullPolicy" .Values.image.pullPolicy -}}
{{- include "gpudiag.preflight" (merge $asked .Values.preflight) | replace "- name: gpudiag" "- name: preflight" }}
  securityContext:
    {{- if .Values.namePods }}
    runAsUser: 0
    runAsNonRoot: false
    {{- end }}
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    capabilities:
      drop: ["ALL"]
  volumeMounts:
    - name: state
      mountPath: /var/lib/gpudiag
    - name: tmp
      mountPath: /tmp
{{- end -}}
