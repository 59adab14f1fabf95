{{/* The name of what the chart makes: the release's, which `helm install gpudiag` makes the manifests' own. */}}
{{- define "gpudiag.fullname" -}}
{{- if contains "gpudiag" .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-gpudiag" (.Release.Name | trunc 42 | trimSuffix "-") -}}
{{- end -}}
{{- end -}}

{{/* What selects the service's pods; `app.kubernetes.io/name` is the job's name in Prometheus too. */}}
{{- define "gpudiag.selector" -}}
app.kubernetes.io/name: gpudiag
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "gpudiag.hub.selector" -}}
app.kubernetes.io/name: gpudiag-hub
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* Labels of no pod: a version that changes must not start the pods again by itself. */}}
{{- define "gpudiag.origin" -}}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name (.Chart.Version | replace "+" "_") }}
{{- end -}}

{{- define "gpudiag.labels" -}}
{{ include "gpudiag.selector" . }}
{{ include "gpudiag.origin" . }}
{{- end -}}

{{- define "gpudiag.hub.labels" -}}
{{ include "gpudiag.hub.selector" . }}
{{ include "gpudiag.origin" . }}
{{- end -}}

{{- define "gpudiag.image" -}}
{{- $image := .Values.image -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $image.repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $image.repository ($image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end -}}
