{{/* Who may use which tenants. */}}

{{/* Not empty: the programs have a policy. */}}
{{- define "cairn.hasPolicy" -}}
{{- if .Values.auth.rules }}policy{{ end -}}
{{- end -}}

{{/*
The names of a role's pods in their certificates, as JSON. A certificate with a URI has no other name. Call with
(dict "root" $ "role" "cache").
*/}}
{{- define "cairn.identities" -}}
{{- $prefix := .root.Values.tls.certManager.uriPrefix -}}
{{- $name := include "cairn.name" .root -}}
{{- if and .root.Values.tls.certManager.enabled $prefix -}}
{{- if and .root.Values.tls.certManager.perPod (ne .role "engine") -}}
{{- /* A worker beside its node is in the node's pod. */ -}}
{{- $beside := and (eq .role "worker") .root.Values.worker.besideNode -}}
{{ list (printf "uri:%s/%s-%s-*" $prefix $name (ternary "cache" .role $beside)) | toJson }}
{{- else -}}
{{ list (printf "uri:%s/%s" $prefix .role) | toJson }}
{{- end -}}
{{- else if eq .role "engine" -}}
{{ list (printf "dns:%s-engine" $name) | toJson }}
{{- else -}}
{{ list (printf "dns:%s-%s.%s.svc" $name .role .root.Release.Namespace) | toJson }}
{{- end -}}
{{- end -}}

{{/* The rules for a role's pods, as YAML. Call with (dict "root" $ "of" "worker" "role" "writer" "tenants" LIST). */}}
{{- define "cairn.ownRules" -}}
{{- range include "cairn.identities" (dict "root" .root "role" .of) | fromJsonArray }}
- {identity: {{ toJson . }}, role: {{ $.role }}, tenants: {{ toJson $.tenants }}}
{{- end }}
{{- end -}}

{{/* The tenants of the workers' KV, as JSON. */}}
{{- define "cairn.workerTenants" -}}
{{- $tenants := list -}}
{{- $groups := .Values.worker.groups | default (dict "" (dict)) -}}
{{- range $groups -}}
{{- $config := mergeOverwrite (deepCopy ($.Values.worker.config | default dict)) (deepCopy (.config | default dict)) -}}
{{- $tenants = append $tenants ($config.tenant | default "default") -}}
{{- end -}}
{{ $tenants | uniq | sortAlpha | toJson }}
{{- end -}}

{{/*
The policy of a role's pods: what the chart's own pods need of each other, the values' rules, and the limits of
tenants at nodes. Call with
(dict "root" $ "role" "cache"). A worker's pods take requests of the router alone, and of those whom the rules name.
*/}}
{{- define "cairn.policy" -}}
{{- $root := .root -}}
{{- $all := list "*" -}}
rules:
{{- if eq .role "cache" }}
{{- /* Of a node alone, too: a cluster may grow from it. `helm test` has a node's certificate. */}}
{{- include "cairn.ownRules" (dict "root" $root "of" "cache" "role" "peer" "tenants" $all) | nindent 2 }}
{{- include "cairn.ownRules" (dict "root" $root "of" "cache" "role" "writer" "tenants" (list "default")) | nindent 2 }}
{{- if $root.Values.worker.enabled }}
{{- $tenants := include "cairn.workerTenants" $root | fromJsonArray }}
{{- include "cairn.ownRules" (dict "root" $root "of" "worker" "role" "writer" "tenants" $tenants) | nindent 2 }}
{{- end }}
{{- if $root.Values.router.enabled }}
{{- include "cairn.ownRules" (dict "root" $root "of" "router" "role" "reader" "tenants" $all) | nindent 2 }}
{{- end }}
{{- if and $root.Values.connection.enabled $root.Values.tls.certManager.enabled }}
{{- $tenants := list ($root.Values.connection.settings.tenant | default "default") }}
{{- include "cairn.ownRules" (dict "root" $root "of" "engine" "role" "writer" "tenants" $tenants) | nindent 2 }}
{{- end }}
{{- else if eq .role "worker" }}
{{- /* `helm test` without nodes has a worker's certificate. */}}
{{- $tenants := include "cairn.workerTenants" $root | fromJsonArray }}
{{- include "cairn.ownRules" (dict "root" $root "of" "worker" "role" "writer" "tenants" $tenants) | nindent 2 }}
{{- if $root.Values.router.enabled }}
{{- include "cairn.ownRules" (dict "root" $root "of" "router" "role" "writer" "tenants" $all) | nindent 2 }}
{{- end }}
{{- end }}
{{- toYaml $root.Values.auth.rules | nindent 2 }}
{{- if and (eq .role "cache") $root.Values.auth.limits }}
limits:
{{- toYaml $root.Values.auth.limits | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The key of a role's ConfigMap. It is in no checksum: pods read a changed policy without a restart. */}}
{{- define "cairn.policyFile" -}}
{{- if include "cairn.hasPolicy" .root }}
policy.yaml: | {{- include "cairn.policy" . | nindent 2 }}
{{- end }}
{{- end -}}
