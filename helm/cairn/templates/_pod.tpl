{{/* What all pods have in common. */}}

{{/*
Labels and annotations of a pod template. Call with (dict "root" $ "component" "cache" "values" VALUES "checksums" MAP).
What the chart needs wins over what the values add.
*/}}
{{- define "cairn.podMetadata" -}}
{{- $labels := include "cairn.labels" . | fromYaml -}}
labels: {{- mergeOverwrite (deepCopy .values.podLabels) $labels | toYaml | nindent 2 }}
annotations: {{- mergeOverwrite (deepCopy .values.podAnnotations) .checksums | toYaml | nindent 2 }}
{{- end -}}

{{/* Fields of a pod's spec. Call with (dict "root" $ "component" "cache" "values" VALUES "grace" SECONDS). */}}
{{- define "cairn.podSpec" -}}
automountServiceAccountToken: false
{{- with .values.serviceAccountName }}
serviceAccountName: {{ . | quote }}
{{- end }}
{{- with .values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
terminationGracePeriodSeconds: {{ .grace }}
securityContext: {{- include "cairn.podSecurityContext" .root | nindent 2 }}
{{- with include "cairn.imagePullSecrets" .root }}
{{ . }}
{{- end }}
{{- if ne .values.spread "none" }}
topologySpreadConstraints:
  {{- $selector := include "cairn.selectorLabels" . }}
  {{- $how := ternary "DoNotSchedule" "ScheduleAnyway" (eq .values.spread "required") }}
  - topologyKey: kubernetes.io/hostname
    maxSkew: 1
    whenUnsatisfiable: {{ $how }}
    labelSelector:
      matchLabels: {{- $selector | nindent 8 }}
  - topologyKey: topology.kubernetes.io/zone
    maxSkew: 1
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- $selector | nindent 8 }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* What the restricted Pod Security Standard asks of a pod. */}}
{{- define "cairn.podSecurityContext" -}}
runAsNonRoot: true
{{- with .Values.podSecurity.uid | int64 }}
runAsUser: {{ . }}
runAsGroup: {{ . }}
fsGroup: {{ . }}
fsGroupChangePolicy: OnRootMismatch
{{- end }}
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{/* And of a container. */}}
{{- define "cairn.containerSecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/*
Until all have heard that the pod ends, calls still come: it serves them for this long, and only then gets SIGTERM.
Call with the values of a role.
*/}}
{{- define "cairn.announce" -}}
{{- with .announceSeconds }}
lifecycle:
  preStop:
    sleep: {seconds: {{ . }}}
{{- end }}
{{- end -}}

{{/* Environment that the values add, after what the chart has. Call with the values of a role. */}}
{{- define "cairn.extraEnv" -}}
{{- with .extraEnv }}{{ toYaml . }}{{ end -}}
{{- end -}}

{{/* Mounts of a role's own Secrets and volumes. */}}
{{- define "cairn.extraMounts" -}}
{{- range .secrets }}
- {name: {{ printf "secret-%s" . | quote }}, mountPath: {{ printf "/etc/cairn-secrets/%s" . | quote }}, readOnly: true}
{{- end }}
{{- with .extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Containers that the values add, as restricted as the chart's own. Call with (dict "root" $ "containers" LIST). */}}
{{- define "cairn.extraContainers" -}}
{{- $context := include "cairn.containerSecurityContext" .root | fromYaml -}}
{{- range .containers }}
{{ list (merge (dict "securityContext" (mergeOverwrite (deepCopy $context) (deepCopy (.securityContext | default dict)))) .) | toYaml }}
{{- end }}
{{- end -}}

{{- define "cairn.extraVolumes" -}}
{{- range .secrets }}
- name: {{ printf "secret-%s" . | quote }}
  secret: {secretName: {{ . | quote }}, defaultMode: 0440}
{{- end }}
{{- with .extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The Secret with the certificate of a role; empty: plaintext. Call with (dict "root" $ "role" "cache"). */}}
{{- define "cairn.tlsSecret" -}}
{{- $tls := .root.Values.tls -}}
{{- if $tls.certManager.enabled -}}
{{ include "cairn.name" .root }}-{{ .role }}-tls
{{- else -}}
{{ index $tls.secrets .role | default $tls.existingSecret }}
{{- end -}}
{{- end -}}

{{/* Not empty: traffic is encrypted, with certificates on both sides. */}}
{{- define "cairn.hasTls" -}}
{{- if or .Values.tls.existingSecret .Values.tls.certManager.enabled }}tls{{ end -}}
{{- end -}}

{{/* Not empty: each pod's certificate has an identity of its own. */}}
{{- define "cairn.certifiesPods" -}}
{{- $manager := .Values.tls.certManager -}}
{{- if and $manager.enabled $manager.perPod $manager.uriPrefix }}pods{{ end -}}
{{- end -}}

{{/* Names of a role's certificate, as JSON. Call with (dict "root" $ "role" "cache" "pods" "*"), or one pod's name. */}}
{{- define "cairn.tlsNames" -}}
{{- $name := include "cairn.name" .root -}}
{{- $service := printf "%s-%s.%s.svc" $name .role .root.Release.Namespace -}}
{{- $names := list $service (printf "%s.cluster.local" $service) (printf "%s-%s" $name .role) -}}
{{- /* Tools call one node; and a worker in the node's pod is called by its node's name, too. */ -}}
{{- if or (eq .role "cache") (and (eq .role "worker") .root.Values.worker.besideNode) -}}
{{- $names = append $names (printf "%s.%s-cache-peers.%s.svc" .pods $name .root.Release.Namespace) -}}
{{- end -}}
{{ toJson $names }}
{{- end -}}

{{/* The volume attributes of cert-manager's CSI driver. Call with (dict "root" $ "role" "cache"). */}}
{{- define "cairn.tlsAttributes" -}}
{{- $manager := .root.Values.tls.certManager -}}
{{- $names := include "cairn.tlsNames" (dict "root" .root "role" .role "pods" "${POD_NAME}") | fromJsonArray -}}
csi.cert-manager.io/issuer-name: {{ $manager.issuerRef.name | quote }}
csi.cert-manager.io/issuer-kind: {{ $manager.issuerRef.kind | quote }}
{{- with $manager.issuerRef.group }}
csi.cert-manager.io/issuer-group: {{ . | quote }}
{{- end }}
csi.cert-manager.io/dns-names: {{ join "," $names | quote }}
{{- with $manager.uriPrefix }}
csi.cert-manager.io/uri-sans: {{ printf "%s/${POD_NAME}" . | quote }}
{{- end }}
csi.cert-manager.io/key-usages: digital signature,server auth,client auth
csi.cert-manager.io/duration: {{ $manager.duration | quote }}
csi.cert-manager.io/renew-before: {{ $manager.renewBefore | quote }}
{{- with .root.Values.podSecurity.uid | int64 }}
csi.cert-manager.io/fs-group: {{ . | quote }}
{{- end }}
{{- end -}}

{{/* Call with (dict "root" $ "role" "cache" "name" "tls"). */}}
{{- define "cairn.tlsVolume" -}}
{{- if and .root.Values.tls.certManager.enabled .root.Values.tls.certManager.perPod }}
- name: {{ .name }}
  csi:
    driver: csi.cert-manager.io
    readOnly: true
    volumeAttributes: {{- include "cairn.tlsAttributes" . | nindent 6 }}
{{- else }}
{{- with include "cairn.tlsSecret" . }}
- name: {{ $.name }}
  secret: {secretName: {{ . | quote }}, defaultMode: 0440}
{{- end }}
{{- end }}
{{- end -}}

{{/*
A budget that lets one pod go at a time, where more than one can be there: with one pod it lets that one go.
Call with (dict "root" $ "component" "cache" "name" NAME "replicas" MOST).
*/}}
{{- define "cairn.disruptionBudget" -}}
{{- if gt (int .replicas) 1 }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ .name }}
  labels: {{- include "cairn.labels" . | nindent 4 }}
spec:
  maxUnavailable: 1
  # One that is not ready serves nobody.
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels: {{- include "cairn.selectorLabels" . | nindent 6 }}
{{- end }}
{{- end -}}

{{/* Seconds that a node needs from SIGTERM to its end at most, and with the hook before it. */}}
{{- define "cairn.cacheGrace" -}}
{{- $config := .Values.cache.config -}}
{{- $sum := .Values.cache.announceSeconds | int -}}
{{- range $key, $default := dict "drain.grace" "1s" "drain.timeout" "10s" "drain.flush_timeout" "1m" -}}
{{- $sum = add $sum (include "cairn.seconds" (include "cairn.settingOr" (dict "settings" $config "key" $key "default" $default))) -}}
{{- end -}}
{{/* services/cache/serve/node/node.cc: kStopLimit, twice. */}}
{{- add $sum 30 -}}
{{- end -}}

{{/* Of a worker or a router. Call with the values of the role. */}}
{{- define "cairn.drainGrace" -}}
{{- add .announceSeconds (include "cairn.seconds" (include "cairn.settingOr" (dict "settings" .config "key" "drain" "default" "20s"))) 15 -}}
{{- end -}}

{{/* What the values say, or what is needed. Call with (dict "name" "cache" "given" SECONDS "needed" SECONDS). */}}
{{- define "cairn.grace" -}}
{{- if and .given (lt (int .given) (int .needed)) -}}
{{- fail (printf "%s.terminationGracePeriodSeconds: got %d, expected at least %d, which announceSeconds and the settings of the drain add up to, or 0 for that" .name (int .given) (int .needed)) -}}
{{- end -}}
{{- .given | default .needed -}}
{{- end -}}
