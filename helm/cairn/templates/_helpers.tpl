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

{{/*
Where the image is. A parent chart's global.imageRegistry replaces the registry that the repository names: its first
part, if that has a dot or a port.
*/}}
{{- define "cairn.imageRepository" -}}
{{- $repository := .Values.image.repository -}}
{{- if not $repository -}}
{{- fail "image.repository: got \"\", expected where you pushed the image, such as registry.example/cairn, or the name of one that all machines have: there is no public image, and `make image` builds one (docs/operate/kubernetes.md)" -}}
{{- end -}}
{{- with (.Values.global).imageRegistry -}}
{{ . }}/{{ regexReplaceAll "^([^/]*[.:][^/]*|localhost)/" $repository "" }}
{{- else -}}
{{ $repository }}
{{- end -}}
{{- end -}}

{{/* Quoted. */}}
{{- define "cairn.image" -}}
{{- $repository := include "cairn.imageRepository" . -}}
{{- if .Values.image.digest -}}
{{ printf "%s@%s" $repository .Values.image.digest | quote }}
{{- else -}}
{{ printf "%s:%s" $repository (.Values.image.tag | default .Chart.AppVersion) | quote }}
{{- end -}}
{{- end -}}

{{/* A field of a pod's spec: the Secrets for pulling of these values and of a parent chart's, which may be names only. */}}
{{- define "cairn.imagePullSecrets" -}}
{{- $secrets := list -}}
{{- range concat ((.Values.global).imagePullSecrets | default list) .Values.imagePullSecrets -}}
{{- $secrets = append $secrets (ternary (dict "name" .) . (kindIs "string" .)) -}}
{{- end -}}
{{- with $secrets -}}
imagePullSecrets: {{- uniq . | toYaml | nindent 2 }}
{{- end -}}
{{- end -}}

{{/* Call with (dict "root" $ "component" "cache"). Selector labels never change: a StatefulSet's are immutable. */}}
{{- define "cairn.selectorLabels" -}}
app.kubernetes.io/name: cairn
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .component }}
{{- if eq .component "worker" }}
{{- with .root.Values.worker.group }}
cairn-group: {{ . }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "cairn.labels" -}}
{{ include "cairn.selectorLabels" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end -}}

{{- define "cairn.checkTransport" -}}
{{- $tls := .Values.tls -}}
{{- if and (not (include "cairn.hasTls" .)) (not $tls.acceptPlaintextOnTheNetwork) -}}
{{- fail "tls: set tls.existingSecret to a Secret with ca.crt, tls.crt and tls.key, or tls.certManager, or, for a trial, tls.acceptPlaintextOnTheNetwork=true" -}}
{{- end -}}
{{- if and (include "cairn.hasTls" .) $tls.acceptPlaintextOnTheNetwork -}}
{{- fail "tls: tls.existingSecret or tls.certManager, and tls.acceptPlaintextOnTheNetwork=true contradict each other" -}}
{{- end -}}
{{- if and $tls.existingSecret $tls.certManager.enabled -}}
{{- fail "tls: tls.existingSecret and tls.certManager.enabled=true contradict each other" -}}
{{- end -}}
{{- if and .Values.cache.cluster.peerIdentities (not (include "cairn.hasTls" .)) -}}
{{- fail (printf "cache.cluster.peerIdentities: got %s, expected none, because tls.acceptPlaintextOnTheNetwork=true: callers show no certificates" (toJson .Values.cache.cluster.peerIdentities)) -}}
{{- end -}}
{{- if and .Values.auth.rules (not (include "cairn.hasTls" .)) -}}
{{- fail (printf "auth.rules: got %d, expected none, because tls.acceptPlaintextOnTheNetwork=true: callers show no certificates" (len .Values.auth.rules)) -}}
{{- end -}}
{{- if and .Values.auth.limits (not .Values.auth.rules) -}}
{{- fail (printf "auth.limits: got %d, expected auth.rules too: without a policy, callers name their tenants themselves" (len .Values.auth.limits)) -}}
{{- end -}}
{{- if and .Values.auth.rules $tls.adminIdentities -}}
{{- fail "tls.adminIdentities: expected none next to auth.rules, whose role admin takes their place" -}}
{{- end -}}
{{- range $role, $secret := $tls.secrets -}}
{{- if and $secret (not $tls.existingSecret) -}}
{{- fail (printf "tls.secrets.%s: expected tls.existingSecret too, for the roles without a Secret of their own" $role) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/*
Probes on the admin port: liveness asks whether threads are stuck, readiness whether the node is starting or draining.
Call with (dict "port" "admin" "startup" SECONDS).
*/}}
{{- define "cairn.probes" -}}
startupProbe:
  httpGet: {path: /readyz, port: {{ .port }}}
  periodSeconds: 2
  failureThreshold: {{ div (add .startup 1) 2 }}
livenessProbe:
  httpGet: {path: /livez, port: {{ .port }}}
  periodSeconds: 10
  timeoutSeconds: 3
  failureThreshold: 3
readinessProbe:
  httpGet: {path: /readyz, port: {{ .port }}}
  periodSeconds: 5
  timeoutSeconds: 3
{{- end -}}

{{/* What the schema cannot say of which roles there are. */}}
{{- define "cairn.checkRoles" -}}
{{- $v := .Values -}}
{{- if not (or $v.cache.enabled $v.worker.enabled $v.router.enabled) -}}
{{- fail "cache.enabled: got false, expected true, or worker.enabled or router.enabled: the release would be empty" -}}
{{- end -}}
{{- if and $v.worker.enabled $v.worker.besideNode (not $v.cache.enabled) -}}
{{- fail "worker.besideNode: got true, expected false, because cache.enabled=false: there are no nodes" -}}
{{- end -}}
{{- end -}}

{{/* What selects this release's series: with the chart's PodMonitor, the job is the release. */}}
{{- define "cairn.alertSelector" -}}
{{- if .Values.alerts.selector -}}
{{ .Values.alerts.selector }}
{{- else -}}
namespace={{ .Release.Namespace | quote }}{{ if .Values.podMonitor.enabled }},job={{ .Release.Name | quote }}{{ end }}
{{- end -}}
{{- end -}}
