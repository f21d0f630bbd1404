{{- define "cairn.name" -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "cairn.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* Call with (dict "root" $ "component" "cache"). Selector labels never change: a StatefulSet's are immutable. */}}
{{- define "cairn.selectorLabels" -}}
app.kubernetes.io/name: cairn
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "cairn.labels" -}}
{{ include "cairn.selectorLabels" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end -}}

{{/* What the restricted Pod Security Standard asks of a pod and of a container. */}}
{{- define "cairn.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "cairn.containerSecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- define "cairn.checkTransport" -}}
{{- if and (not .Values.tls.existingSecret) (not .Values.tls.acceptPlaintextOnTheNetwork) -}}
{{- fail "tls: set tls.existingSecret to a Secret with ca.crt, tls.crt and tls.key, or, for a trial, tls.acceptPlaintextOnTheNetwork=true" -}}
{{- end -}}
{{- if and .Values.tls.existingSecret .Values.tls.acceptPlaintextOnTheNetwork -}}
{{- fail "tls: tls.existingSecret and tls.acceptPlaintextOnTheNetwork=true contradict each other" -}}
{{- end -}}
{{- end -}}

{{/* Probes on the admin port: liveness asks whether threads are stuck, readiness whether the node is starting or draining. */}}
{{- define "cairn.probes" -}}
startupProbe:
  httpGet: {path: /readyz, port: admin}
  periodSeconds: 2
  failureThreshold: 300
livenessProbe:
  httpGet: {path: /livez, port: admin}
  periodSeconds: 10
  timeoutSeconds: 3
  failureThreshold: 3
readinessProbe:
  httpGet: {path: /readyz, port: admin}
  periodSeconds: 5
  timeoutSeconds: 3
{{- end -}}
