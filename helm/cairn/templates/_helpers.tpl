{{/*
The beginning of all names: that of the release, if it can begin the name of a Service (a letter first, no dot)
and is short enough for what follows. Else it is made so, with a hash behind it: other releases that
become the same must not have the same objects.
*/}}
{{- define "cairn.name" -}}
{{- $name := regexReplaceAll "[^a-z0-9-]+" .Release.Name "-" -}}
{{- if not (regexMatch "^[a-z]" $name) }}{{ $name = printf "cairn-%s" $name }}{{ end -}}
{{- if or (ne $name .Release.Name) (gt (len $name) 40) -}}
{{- printf "%s-%s" ($name | trunc 31 | trimSuffix "-") (.Release.Name | sha256sum | trunc 8) -}}
{{- else -}}
{{- $name -}}
{{- end -}}
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
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
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

{{/* Probes on the admin port, which the caller names: liveness asks whether threads are stuck, readiness whether the node is starting or draining. */}}
{{- define "cairn.probes" -}}
startupProbe:
  httpGet: {path: /readyz, port: {{ . }}}
  periodSeconds: 2
  failureThreshold: 300
livenessProbe:
  httpGet: {path: /livez, port: {{ . }}}
  periodSeconds: 10
  timeoutSeconds: 3
  failureThreshold: 3
readinessProbe:
  httpGet: {path: /readyz, port: {{ . }}}
  periodSeconds: 5
  timeoutSeconds: 3
{{- end -}}

{{/* What the schema cannot say of the router's values. */}}
{{- define "cairn.checkRouter" -}}
{{- if not (or .Values.router.workers .Values.worker.enabled) -}}
{{- fail "router: set worker.enabled=true, or router.workers to addresses HOST:PORT" -}}
{{- end -}}
{{- if not (or .Values.router.model.existingClaim .Values.worker.model.existingClaim (include "cairn.routesEngines" .)) -}}
{{- fail "router.model.existingClaim: name the volume with the GGUF file that the workers run" -}}
{{- end -}}
{{- if and .Values.worker.cacheAddress (not .Values.router.cacheAddress) (not (include "cairn.routesEngines" .)) -}}
{{- fail "router.cacheAddress: set it, because worker.cacheAddress is set: HOST:PORT of nodes of the same cluster, or none" -}}
{{- end -}}
{{- if and .Values.router.http.tenantHeader (not .Values.router.callers) -}}
{{- fail "router.callers: expected who the gateway is, because router.http.tenantHeader is set: whoever else reaches the port could name any tenant" -}}
{{- end -}}
{{- if and .Values.router.http.tenantHeader .Values.router.http.apiKeysSecret -}}
{{- fail "router.http: tenantHeader and apiKeysSecret contradict each other" -}}
{{- end -}}
{{- if and .Values.router.picker.enabled (not (include "cairn.routesEngines" .)) -}}
{{- fail "router.picker.enabled: set router.workers to engines, http://IP:PORT each: a gateway can send requests to nothing else" -}}
{{- end -}}
{{- end -}}

{{/* Not empty: the router's workers are engines with OpenAI's API. */}}
{{- define "cairn.routesEngines" -}}
{{- with .Values.router.workers }}{{ if regexMatch "^https?://" (first .) }}engines{{ end }}{{ end -}}
{{- end -}}

{{/* The volume with the router's model. Empty: there is none, before engines. */}}
{{- define "cairn.routerModelClaim" -}}
{{- if .Values.router.model.existingClaim -}}
{{ .Values.router.model.existingClaim }}
{{- else if not (include "cairn.routesEngines" .) -}}
{{ .Values.worker.model.existingClaim }}
{{- end -}}
{{- end -}}

{{- define "cairn.routerModelPath" -}}
{{- if .Values.router.model.existingClaim -}}
{{ .Values.router.model.path }}
{{- else -}}
{{ .Values.worker.model.path }}
{{- end -}}
{{- end -}}

{{/* A JSON list: a router calls each worker by a name of its own. */}}
{{- define "cairn.routerWorkers" -}}
{{- $list := .Values.router.workers -}}
{{- $pods := printf "%s-worker" (include "cairn.name" .) -}}
{{- $service := printf "%s-pods" $pods -}}
{{- $replicas := .Values.worker.replicas -}}
{{- if .Values.worker.besideNode -}}
{{- $pods = printf "%s-cache" (include "cairn.name" .) -}}
{{- $service = printf "%s-peers" $pods -}}
{{- $replicas = .Values.cache.replicas -}}
{{- end -}}
{{- if not $list -}}
{{- range $i := until (int $replicas) -}}
{{- $list = append $list (printf "%s-%d.%s.%s.svc:7500" $pods $i $service $.Release.Namespace) -}}
{{- end -}}
{{- end -}}
{{ toJson $list }}
{{- end -}}

{{/* Nodes whose events the router follows. A few of a cluster are enough: they name the others. */}}
{{- define "cairn.routerCache" -}}
{{- if or (eq .Values.router.cacheAddress "none") (include "cairn.routesEngines" .) -}}
{{- else if .Values.router.cacheAddress -}}
{{ .Values.router.cacheAddress }}
{{- else if gt (int .Values.cache.replicas) 1 -}}
{{- $list := list -}}
{{- range $i := until (min 8 .Values.cache.replicas | int) -}}
{{- $list = append $list (printf "%s-cache-%d.%s-cache-peers.%s.svc:7400" (include "cairn.name" $) $i (include "cairn.name" $) $.Release.Namespace) -}}
{{- end -}}
{{ join "," $list }}
{{- else -}}
{{ include "cairn.name" . }}-cache.{{ .Release.Namespace }}.svc:7400
{{- end -}}
{{- end -}}
